"""Plans: compile a recipe for devices that may not exist here, and read the compiled programs.

`planner` makes a `Plan` and `text` prints it. `programs` compiles training step and decoding for
the `devices`; `hlo` reads the compiled text and its communication, from which `step_time` takes the
time. `flops` counts what the model needs, independent of the compiler.
"""
