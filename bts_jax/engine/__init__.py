"""How runs are executed. Policies and bandits know nothing of what is in here."""
