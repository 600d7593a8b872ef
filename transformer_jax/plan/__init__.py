"""Plans: compile a recipe for devices that may not exist here, and read the compiled programs.

`planner` makes a `Plan` and `text` prints it. `programs` compiles training step and decoding for
the `devices`; `hlo` reads the compiled text, from which `collectives` takes the communication and
`step_time` the time. `flops` counts what the model needs, independent of the compiler.
"""
