"""A model that is run step by step, some of its outputs fed back as inputs: which step goes wrong
on a candidate?

`decoder` finds the purpose of each input and output, by names, types and the user's loop.toml,
`inputs` what a step is fed, `walk` runs steps on the reference and the candidate, `search` finds
the step, `document` and `picture` tell it. The step that is found is an ordinary bisection, fed
with the state that the reference has before it.
"""
