"""docker-compose.yml as it is shipped, played with podman on stand-ins of the images it names.

`python -m tests.compose` builds the stand-ins, builds our image from deploy/Dockerfile, brings the
file up, kills the extender, takes everything down, and looks for what is left.
"""
