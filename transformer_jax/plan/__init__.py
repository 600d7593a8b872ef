"""Plans: compile a recipe for devices that may not exist here, and read the compiled programs.

`planner` makes a `Plan` and `text` prints it. `topologies` finds the devices: those here, a slice
of `tpu` or nodes of `gpu`. `programs` compiles training step and decoding for them; `hlo` reads the
compiled text and its communication, from which `step_time` takes the time, for a GPU by `roofline`.
`flops` counts what the model needs, independent of the compiler.
"""
