"""A BERT with random weights as a run of harken and as a model of transformers."""

import pytest
import torch


@pytest.fixture(scope="session")
def bert(tmp_path_factory, tales):
    """The run, and the same model of transformers, with MLM and NSP heads."""
    transformers = pytest.importorskip("transformers")
    from harken import recipe as recipes
    from harken.bridge import weight_mapping
    from harken.bridge.families import find_mapping
    from harken.bridge.folder import ModelFolder
    from harken.data.tokenizers.tokenizer import train_tokenizer
    from harken.inference.run import Run, build_model

    folder = tmp_path_factory.mktemp("bert")
    tokenizer = train_tokenizer("wordpiece", lambda: [tales.read_text()], 200)
    body = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.BertConfig(vocab_size=tokenizer.vocab, max_position_embeddings=24, **body)
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape) * (0.15 if p.dim() > 1 else 0.3) + (p.dim() == 1 and "orm.weight" in name))
    model.save_pretrained(folder)
    source = ModelFolder(folder)
    mapping = find_mapping(source)
    recipe = recipes.resolve(("test", mapping.settings()))
    with torch.device("meta"):
        empty = recipe.build(tokenizer.vocab)
    weights = weight_mapping.read_weights(source, weight_mapping.match_tensors(source, mapping), empty)
    facts = {"metrics": {}, "sha256": {}}
    return Run(folder, recipe, facts, build_model(recipe, tokenizer.vocab, weights), tokenizer), model
