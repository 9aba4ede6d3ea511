"""Which recipes use a public name. The pages of the reference link to them."""

import re

import bts_jax

LABEL = re.compile(r"^\((recipe-\d+)\)=$", re.MULTILINE)
CODE = re.compile(r"^```\{code-block\}.*?^```$", re.MULTILINE | re.DOTALL)


def labelled(text: str) -> str:
    """Returns the page of the recipes with a label before each recipe, to which other pages can
    link.
    """
    first, *recipes = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return first + "".join(
        f"(recipe-{number})=\n{recipe}" for number, recipe in enumerate(recipes, 1)
    )


def uses(text: str) -> dict[str, list[str]]:
    """Returns the labels of the recipes whose code uses a name, by the name. `text` is a labelled
    page.
    """
    posteriors = {kind.__name__ for kind in bts_jax.posteriors.POSTERIORS.values()}
    classes = bts_jax.POLICIES | bts_jax.KNAPSACK_POLICIES | bts_jax.BANDITS
    found: dict[str, list[str]] = {}
    _, *parts = LABEL.split(text)
    for label, recipe in zip(parts[::2], parts[1::2], strict=True):
        code = "".join(CODE.findall(recipe))
        names = [
            name.replace("bj.", "bts_jax.").replace("plots.", "bts_jax.plots.")
            for name in re.findall(r"\b(?:bj|plots)\.\w+", code)
        ]
        names += [
            f"bts_jax.{classes[kind].__name__}"
            for kind in re.findall(r'"([\w-]+)"', code)
            if kind in classes
        ]
        for imported in re.findall(r"^from bts_jax\.posteriors import (.*)$", code, re.MULTILINE):
            names += [
                f"bts_jax.posteriors.{name}" for name in imported.split(", ") if name in posteriors
            ]
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(label)
    return found
