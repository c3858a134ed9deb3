"""Former names of settings, setting values, verbs and modules, with their new names.

A recipe or a command line with a former name gets one line: `train.decay is now train.ema_decay`.
"""

# new names by former path; where kinds use different new names, the first that the kind has is meant
SETTINGS: dict[str, tuple[str, ...]] = {
    "data.tokens": ("tokenizer",),
    "data.target_tokens": ("target_tokenizer",),
    "data.longest": ("max_length", "max_rows"),
    "data.joint": ("shared_vocab",),
    "data.recurring": ("duplicate_questions",),
    "data.ask": ("target_level",),
    "data.judged": ("eval_operands",),
    "data.split_dropout": ("bpe_dropout",),
    "data.lower": ("lowercase",),
    "data.vocab": ("vocab_size",),
    "data.most_words": ("max_words",),
    "data.side": ("image_size",),
    "data.colour": ("color",),
    "data.labels": ("class_names",),
    "data.answer": ("target_type",),
    "data.batches": ("batching",),
    "data.largest": ("max_operand",),
    "data.shuffled": ("shuffle_curriculum",),
    "data.scale": ("feature_scaling",),
    "model.hidden": ("d_ff", "mlp_width"),
    "model.loud": ("embedding_scale",),
    "model.lift": ("input_projection",),
    "model.follows": ("nsp_head",),
    "model.fill": ("mlm_head",),
    "model.blanks": ("attend_empty_slots",),
    "model.places": ("pe_dim",),
    "model.near": ("window_blocks",),
    "model.hubs": ("global_blocks",),
    "model.links": ("random_blocks",),
    "model.links_seed": ("random_seed",),
    "model.block": ("block_size",),
    "model.base": ("rope_base",),
    "model.scaling": ("rope_scaling",),
    "model.act": ("activation",),
    "model.rms": ("rms_norm",),
    "model.tied": ("tie_embeddings",),
    "model.shared": ("share_embeddings",),
    "model.filter": ("kernel_size",),
    "task.share": ("mlm_probability",),
    "task.x": ("mask_replace_prob",),
    "task.y": ("random_replace_prob",),
    "task.z": ("keep_prob",),
    "task.learns": ("objective",),
    "task.longest": ("max_new_tokens", "max_answer_length"),
    "task.measure": ("metric",),
    "task.weights": ("class_weights",),
    "task.turn": ("rotation",),
    "task.learned": ("learned_threshold",),
    "task.bleu": ("bleu_tokenizer",),
    "train.final": ("min_lr_ratio",),
    "train.last": ("average_last",),
    "train.decay": ("ema_decay",),
    "train.drop": ("plateau_factor",),
    "train.patience": ("plateau_patience",),
    "train.pick": ("select_seed_on",),
    "train.members": ("keep_seeds",),
    "train.micro": ("micro_batch",),
    "train.stop_after": ("early_stopping_patience",),
    "train.keep": ("keep_checkpoints",),
    "train.clip": ("grad_clip",),
    "train.unfreeze": ("unfreeze_last",),
    "train.best": ("keep_best",),
    "train.price": ("price_per_hour",),
}

VALUES = {
    "train.average=moving": "ema",
    "train.optimizer=adam": "adamw",
    "task.objective=words": "mlm",
    "task.objective=next": "nsp",
    "data.target_type=several": "multilabel",
}

VERBS: dict[str, str] = {}

# former=new module, relative to harken
_MODULES = """
data.graph_sums=core.backends.graph_sum models.carried=models.decoder_state data.said=data.targets
data.sniff=data.detect.kinds data.peek=data.detect.preview data.columns=data.tables.read
data.vectors=data.tables.vectors data.untrusted=data.tables.untrusted data.tokens=data.tokenizers.tokenizer
data.foreign=data.tokenizers.pretrained data.word_pieces=data.tokenizers.word_pieces
data.split_dropout=data.tokenizers.bpe_dropout data.pair_tokens=data.tokenizers.pairs data.text=data.text.source
data.encode=data.text.encode data.documents=data.text.documents data.masked_batch=data.text.masked_batch
data.table=data.labelled.source data.tags=data.labelled.tags data.spans=data.labelled.spans
data.conll=data.labelled.conll data.squad=data.labelled.squad data.examples=data.labelled.examples
data.label_batch=data.labelled.batch data.pairs=data.pairs.source data.pair_files=data.pairs.files
data.pair_batch=data.pairs.batch data.trees=data.pairs.trees data.stories=data.stories.source
data.babi=data.stories.babi data.story_batch=data.stories.batch data.images=data.images.source
data.albums=data.images.image_readers data.picture_files=data.images.files data.image_batch=data.images.batch
data.graphs=data.graphs.source data.graph_files=data.graphs.files data.graph_arrays=data.graphs.arrays
data.graph_batch=data.graphs.batch data.sets=data.sets.source data.set_columns=data.sets.columns
data.set_batch=data.sets.batch data.captions=data.captions.source data.caption_batch=data.captions.batch
data.maths=data.maths.source data.maths_batch=data.maths.batch data.maths_integers=data.maths.integers
data.maths_integrals=data.maths.integrals data.maths_matrices=data.maths.matrices data.problem=data.maths.problem
data.tales=data.synthetic.tales data.phrases=data.synthetic.phrases data.clauses=data.synthetic.clauses
data.french=data.synthetic.french data.recall=data.synthetic.recall data.scenes=data.synthetic.scenes
data.clouds=data.synthetic.clouds data.digits=data.synthetic.digits data.opinions=data.synthetic.opinions
data.tale=data.synthetic.story_builder data.simulate_stories=data.synthetic.stories
data.simulate_people=data.synthetic.story_people data.simulate_logic=data.synthetic.story_logic
tasks.answering=tasks.label_task tasks.words=tasks.linear_cross_entropy tasks.states=tasks.frozen_features
tasks.groups=tasks.breakdown tasks.marks=tasks.metrics.classification tasks.measures=tasks.metrics.generation
tasks.bag=tasks.baselines.linear tasks.ngram=tasks.baselines.ngram decode.chance=decode.counter_rng
decode.steps=decode.cuda_graph decode.sample=decode.sampling training.average=training.weight_average
training.board=training.tensorboard training.capture=training.cuda_graph training.course=training.validation_state
training.forecast=training.resource_estimate training.many=training.stacked_seeds training.meter=training.cost
training.optim=training.optimizers training.state=training.checkpoint_state use=inference
use.ask=inference.answers.ask use.caption=inference.answers.caption use.classify=inference.answers.classify
use.embed=inference.answers.embed use.fill=inference.answers.fill use.nodes=inference.answers.nodes
use.pictures=inference.answers.images use.score=inference.answers.score use.sets=inference.answers.sets
use.story=inference.answers.stories use.tag=inference.answers.tag use.translate=inference.answers.translate
use.chat=inference.chat use.cut=inference.stop_sequences use.does=inference.abilities
use.few_shots=inference.prompt_eval use.light=inference.prepare use.model=inference.run use.prompt=inference.prompt
use.trace=inference.trace look=analysis look.choice=analysis.n_clusters look.clusters=analysis.clusters
look.components=analysis.principal_components bridge.bring=bridge.importer bridge.family=bridge.weight_mapping
bridge.marks=bridge.special_tokens bridge.oracle=bridge.transformers_reference bridge.bert=bridge.families.bert
bridge.gemma=bridge.families.gemma bridge.gpt2=bridge.families.gpt2 bridge.heads=bridge.families.heads
bridge.llama=bridge.families.llama bridge.marian=bridge.families.marian bridge.vit=bridge.families.vit
study=experiments study.train=experiments.train study.choose=experiments.choose study.estimate=experiments.estimate
study.seeds=experiments.seeds study.transfer=experiments.transfer study.cost=experiments.costs
study.asking=experiments.few_shot study.report=experiments.report.page study.shown=experiments.report.sections
study.chart=experiments.report.line_chart study.picture=experiments.report.interval_plot
study.heat=experiments.report.attention_map study.graph_picture=experiments.report.graph_plot
study.graph_shown=experiments.report.graph_section study.compare=experiments.compare.comparison
study.compare_page=experiments.compare.page study.tally=experiments.compare.summary
study.audit=experiments.audit.audit study.proofs=experiments.audit.checks study.blame=experiments.audit.divergence
study.bench=experiments.bench.benchmark study.contenders=experiments.bench.implementations
study.peer=experiments.bench.transformers_gpt2 study.cluster=experiments.cluster.clustering
study.cluster_page=experiments.cluster.page study.regress=experiments.cluster.pcr
study.demo=experiments.demos.translate study.demo_clouds=experiments.demos.clouds
study.demo_digits=experiments.demos.digits study.demo_gcd=experiments.demos.gcd
study.demo_karate=experiments.demos.karate study.demo_reviews=experiments.demos.reviews
study.demo_scenes=experiments.demos.scenes study.demo_stories=experiments.demos.stories kinds=registry part=settings
run=run_folder cli.say=console
"""
IMPORTS = {f"harken.{former}": f"harken.{new}" for former, new in (pair.split("=") for pair in _MODULES.split())}
