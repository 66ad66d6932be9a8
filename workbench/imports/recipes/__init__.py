"""The YAML of trainers of the field: LLaMA-Factory, Axolotl, Accelerate and torchtune."""
