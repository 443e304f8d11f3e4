"""What is asked for by hand: plan, lineage, trace, rebuild, retention."""
