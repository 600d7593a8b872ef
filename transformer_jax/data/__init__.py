"""From text to batches. The modules in the order in which a sentence pair passes them:

- `config`: what can be set.
- `sources/`: where text is, such as files or TFDS.
- `splits`: directions, training, validation and test sets, and which pairs are held out.
- `filters/`: which training pairs are left out.
- `tokenizer`, `mapped_tokenizer`, `tokenizer_pair`, `language_tags`, `tokenizer_training`: text
  to ids. A tokenizer, one with another map of ids, those of both languages, their tags, and how
  they are learned.
- `sampling`: other segmentations of a text at each visit.
- `blocks`: which sentences of a document are one example.
- `ids`, `id_files`, `sentences`: a text made into ids in parts, its files and the cache, and views
  of them.
- `batch_shapes`, `batches`: which pairs form the batch at a position, and its arrays (`padding`).
- `pipeline`: batches ahead of the training step, by TensorFlow (`tensorflow`) or a thread.
"""
