# corral in a container: docs/install.md#docker says how it is built and run.

# The Node.js that corral is packed with and runs on.
ARG NODE=24-bookworm-slim
# What the image is made on: Debian or Ubuntu, for GPUs one with the libraries of their driver.
ARG BASE=debian:bookworm-slim

FROM node:${NODE} AS package
WORKDIR /source
COPY package.json package-lock.json .npmrc ./
RUN npm ci
COPY . .
# The names of the optional packages are separate words.
# hadolint ignore=SC2046
RUN mkdir /package && npm pack --pack-destination /package \
    && npm install --global --prefix /opt/corral /package/corral-*.tgz $(node -p \
      'Object.entries(require("./package.json").peerDependencies).map(one => one.join("@")).join(" ")')

# hadolint ignore=DL3006
FROM ${BASE}
# cpu, vulkan, cuda or rocm: which libraries corral's llama.cpp builds find. corral itself chooses the build for the GPU.
ARG KIND=cpu
# For machines that no release of llama.cpp suits. Without these (--build-arg COMPILER=) the image is smaller by half.
ARG COMPILER="cmake g++ make"
# hadolint ignore=DL3008,SC2086
RUN set -eu; \
    case "$KIND" in \
      cpu|cuda|rocm) libraries= ;; \
      vulkan) libraries="libvulkan1 mesa-vulkan-drivers" ;; \
      *) echo "KIND is cpu, vulkan, cuda or rocm, not $KIND" >&2; exit 1 ;; \
    esac; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ca-certificates libatomic1 libgomp1 libstdc++6 tini $COMPILER $libraries; \
    rm -rf /var/lib/apt/lists/*; \
    groupadd --gid 10001 corral; \
    useradd --uid 10001 --gid corral --no-create-home --home-dir /data --shell /usr/sbin/nologin corral; \
    install -d -o corral -g corral /data
COPY --from=package /usr/local/bin/node /usr/local/bin/node
COPY --from=package /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
COPY --from=package /opt/corral /opt/corral
COPY packaging/docker/healthcheck.mjs /opt/corral/healthcheck.mjs
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm && ln -s /opt/corral/bin/corral /usr/local/bin/corral

ENV CORRAL_HOME=/data CORRAL_HOST=0.0.0.0 HOME=/data \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 11435
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["node", "/opt/corral/healthcheck.mjs"]
# tini is process 1: it passes signals on, and takes in processes whose parents have ended.
ENTRYPOINT ["tini", "--", "corral"]
CMD ["serve"]
