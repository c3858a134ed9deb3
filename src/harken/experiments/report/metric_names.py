"""Display names of metrics, and which of them are better when lower."""

DISPLAY_NAMES = {"valid": "validation", "train": "training", "ram_gib": "memory, GiB", "auc": "AUC"}
DISPLAY_NAMES |= {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L", "f1": "F1", "mse": "MSE", "r2": "R²"}
DISPLAY_NAMES |= {"answer_f1": "answer F1", "bracket_f1": "bracket F1", "em": "exact match"}
LOWER_IS_BETTER = {"loss", "perplexity", "bits_per_character", "mse"}
# metrics that a validation pass can log beside the loss
VALIDATION_METRICS = ["bleu", "exact_match", "rouge_l", "answer_f1", "bracket_f1"]
VALIDATION_METRICS += ["accuracy", "f1", "matthews", "auc", "pearson", "spearman", "r2", "em"]


def display_name(key: str) -> str:
    """The name of a metric, split or fact as it is printed."""
    return DISPLAY_NAMES.get(key, str(key).replace("_", " "))
