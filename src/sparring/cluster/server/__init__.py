"""``sparring serve`` on a cluster: engines that answer, and workers that train fine-tuning jobs."""
