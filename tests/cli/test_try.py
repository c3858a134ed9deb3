import pytest
def test_x(harken, run, tales, tmp_path, monkeypatch):
    import os; L=[]
    (tmp_path/"latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1")*20)
    (tmp_path/"empty.txt").write_text("")
    (tmp_path/"folder").mkdir()
    (tmp_path/"bin.dat").write_bytes(os.urandom(2000))
    (tmp_path/"lm.toml").write_text("[model]\nlayrs = 2\n")
    (tmp_path/"bad.toml").write_text("[model\n")
    (tmp_path/"flat.toml").write_text("layers = 2\n")
    (tmp_path/"pairs.tsv").write_text("".join(f"a cat number {i} sat\tun chat numero {i} dort\n" for i in range(30)))
    (tmp_path/"story.txt").write_text("".join("1 Mary went to the kitchen.\n2 John took the ball.\n3 Where is Mary?\tkitchen\t1\n" for i in range(30)))
    (tmp_path/"taken").mkdir(); (tmp_path/"taken"/"x").write_text("x")
    (tmp_path/"tales.txt").write_text(tales.read_text())
    for args in [("check","latin.txt"),("check","empty.txt"),("check","folder"),("check","bin.dat"),("train","lm.toml"),("train","bad.toml"),("train","flat.toml"),("check","pairs.tsv"),("check","story.txt"),("train","tales.txt","--out","taken"),("train","tales.txt","--out","tales.txt"),("train","tales.txt","layers=2"),("train","tales.txt","model.layers=0"),("train","tales.txt","--minutes","0"),("generate",run,"x","--tokens","-1"),("generate",run,"x","--n","0"),("generate",run,"x","--seed","-1"),("eval",run,"--split","train"),("demo","digits"),("generate","nowhere","x"),("generate","folder","x"),("eval",run,"nothing.txt"),("train",run,"--resume","train.steps=5"), ("train","tales.txt","train.lr=fast"),("check","tales.tx"),("check","tale"),("data","tale"),("train",run), ("train","tales.txt","data.path"), ("score",run), ("train","tales.txt","data.valid=2.0", "train.steps=2"), ("train","tales.txt","train.device=tpu","train.steps=1"),("train","tales.txt","data.examples=1","train.steps=1"), ("train","tales.txt","data.tokens=bpe","data.vocab=10"), ("train","tales.txt","train.seed=-1"), ("train", "-")]:

        s = harken(*args, stdin=b"" if args[-1]=="-" else None)
        L.append(f"{s.code} {args} -> {s.err!r} || {s.out[:100]!r}")
    open("/tmp/try.txt","w").write("\n".join(L))
