# Not yet run: the machines that this is developed on have no container engine.
#
#     docker build -t transformer_jax .                                  on a CPU
#     docker build -t transformer_jax --build-arg EXTRAS=serve,cuda .    on NVIDIA's GPUs
#     docker run -v "$PWD/runs:/runs" transformer_jax train --config=quickstart --workdir=/runs/first
#     docker run -p 8000:8000 -v "$PWD/runs:/runs" transformer_jax serve --workdir=/runs/first --host=0.0.0.0
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir=/dist .

FROM python:3.12-slim
ARG EXTRAS=serve
COPY --from=wheel /dist /dist
COPY constraints.txt /dist/
RUN pip install --no-cache-dir --constraint /dist/constraints.txt "$(echo /dist/*.whl)[$EXTRAS]" \
    && useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["transformer-jax"]
