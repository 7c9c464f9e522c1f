"""Models by name: what a recipe's ``[model]`` builds."""
