"""Who may read: which right each route takes, and the answers of the reviews, kept for seconds."""
