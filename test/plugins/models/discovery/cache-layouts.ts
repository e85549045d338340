import { createHash } from 'node:crypto'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'

export const sha256 = (bytes: Buffer | string) => createHash('sha256').update(bytes).digest('hex')

function write(path: string, bytes: Buffer | string): void {
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, bytes)
}

/** Lays a snapshot out like the Hugging Face client: links into blobs named by their digests. */
export function layOutSnapshot(
  cache: string,
  repository: string,
  commit: string,
  files: Record<string, Buffer | string>,
  ref?: string
): string {
  const folder = join(cache, `models--${repository.replaceAll('/', '--')}`)
  for (const [path, bytes] of Object.entries(files)) {
    const isLarge = /\.(gguf|safetensors)$/.test(path)
    const gitBlob = Buffer.concat([Buffer.from(`blob ${bytes.length}\0`), Buffer.from(bytes)])
    const etag = isLarge ? sha256(bytes) : createHash('sha1').update(gitBlob).digest('hex')
    write(join(folder, 'blobs', etag), bytes)
    const link = join(folder, 'snapshots', commit, path)
    mkdirSync(dirname(link), { recursive: true })
    symlinkSync(relative(dirname(link), join(folder, 'blobs', etag)), link)
  }
  if (ref) write(join(folder, 'refs', ref), commit)
  return folder
}

/** Lays a model out like Ollama. `reference` is `host/namespace/model/tag`. Layers without bytes only name a blob. */
export function layOutOllama(
  models: string,
  reference: string,
  layers: { kind: string; bytes: Buffer | string; stored?: Buffer | string | null }[]
): void {
  for (const { bytes, stored = bytes } of layers) {
    if (stored !== null) write(join(models, 'blobs', `sha256-${sha256(bytes)}`), stored)
  }
  const manifest = {
    schemaVersion: 2,
    mediaType: 'application/vnd.docker.distribution.manifest.v2+json',
    config: { mediaType: 'application/vnd.docker.container.image.v1+json', digest: `sha256:${sha256('{}')}`, size: 2 },
    layers: layers.map(({ kind, bytes }) => ({
      mediaType: `application/vnd.ollama.image.${kind}`,
      digest: `sha256:${sha256(bytes)}`,
      size: bytes.length
    }))
  }
  write(join(models, 'manifests', reference), JSON.stringify(manifest))
}

/** Lays files out like LM Studio: `<publisher>/<model>/<file>`. */
export function layOutFiles(folder: string, files: Record<string, Buffer | string>): void {
  for (const [path, bytes] of Object.entries(files)) write(join(folder, path), bytes)
}
