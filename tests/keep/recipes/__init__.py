"""Programs of others in a kept folder. Each is run once without a break; then it is killed with its machine, brought
back on a fresh one, and what comes out is compared. None of them knows colabkeep.
"""
