"""What the product's workers import."""

from engines.product import agents

keyed, pure, keyed_plain, pure_plain = agents()
