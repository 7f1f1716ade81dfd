"""A model that is run step by step, some of its outputs fed back as inputs -> the step that fails
on a candidate.

`decoder` finds the purpose of each input and output, by names, types and the user's loop.toml.
`inputs` finds the values that a step is fed, `run_steps` runs steps on the reference and the
candidate, `step_search` finds the step, and `result_folder` writes the result. The step that is
found is an ordinary bisection, fed with the state that the reference has before it.
"""
