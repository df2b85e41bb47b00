"""Parts of an experiment's pages that belong to one viewer: logs, and the brushed trials."""
