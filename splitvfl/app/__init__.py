"""From settings to objects: experiments, deployments, serving, and what a person sees on the way."""
