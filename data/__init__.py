"""Input-pipeline code: folders and made-up images to channels-last uint8 batches. No dataset lives here."""
