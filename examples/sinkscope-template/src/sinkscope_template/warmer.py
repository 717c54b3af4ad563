from sinkscope.extend import Registered, Setting, number, register_condition

register_condition(
    Registered(
        "warmer",
        (Setting("temperature", 0.7, number(0), label=lambda value: f"temperature {value:g}"),),
        make=lambda values, seed: None,  # attention stays as it is
        decode=lambda values: {"temperature": values["temperature"]},
    )
)
