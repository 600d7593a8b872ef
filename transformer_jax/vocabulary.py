"""The four reserved vocabulary ids, the same in every tokenizer this project trains."""

PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
UNK_ID = 3
