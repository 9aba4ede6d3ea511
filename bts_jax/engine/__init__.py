"""The engine that executes runs. Policies and bandits do not depend on it."""
