"""What `transformer-jax distil` does besides translating and training.

`student` makes the config of the student from a recipe and its teacher. `stages` are folders that
are filled once, `text` and `choice` fill two of them: the text, and what of the teacher's
translations the student is trained on. `table` compares teacher and student.
"""
