import { join } from 'node:path'
import { Type } from 'typebox'
import { labelFromFileName } from '../../core/models/gguf-file-name.ts'
import { parseJson } from '../../core/system/json-file.ts'
import type { CacheDisk } from './cache-disk.ts'
import { adopted, type CacheFile, type Candidate, fileProblem, validName } from './candidate.ts'

/** The models in a folder of Ollama's, which holds `manifests` and `blobs`. */
export async function findOllama(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  const blobs = new Map<string, CacheFile>()
  for (const manifest of await readManifests(join(folder, 'manifests'), disk)) {
    for (const { mediaType, sha256 } of layersOf(manifest.text) ?? []) {
      if (blobs.has(sha256) || !WEIGHTS.includes(mediaType)) continue
      const name = `sha256-${sha256}`
      blobs.set(sha256, await disk.file(name, join(folder, 'blobs', name)))
    }
    candidates.push(planOllama(manifest, blobs))
  }
  return candidates
}

async function readManifests(folder: string, disk: CacheDisk): Promise<OllamaManifest[]> {
  const manifests: OllamaManifest[] = []
  for (const file of await disk.files(folder)) {
    const [host, namespace, model, tag, ...deeper] = file.split('/') as [string, string, string, ...string[]]
    if (tag === undefined || deeper.length > 0) continue
    const path = join(folder, host, namespace, model, tag)
    const text = await disk.text(path)
    if (text !== undefined) manifests.push({ host, namespace, model, tag, path, text })
  }
  return manifests
}

/** A manifest below Ollama's `manifests/<host>/<namespace>/<model>/<tag>`. */
export interface OllamaManifest {
  host: string
  namespace: string
  model: string
  tag: string
  /** Absolute path. */
  path: string
  text: string
}

const ManifestSchema = Type.Object({
  layers: Type.Optional(
    Type.Array(
      Type.Object({
        mediaType: Type.String(),
        digest: Type.String({ pattern: '^sha256[:-][0-9a-f]{64}$' }),
        size: Type.Number()
      })
    )
  )
})

interface Layer {
  mediaType: string
  /** 64 hex digits. */
  sha256: string
  size: number
}

/** Hosts that models are pulled from by their repository's name, with the quantization as the tag. */
const HUBS = new Set(['hf.co', 'huggingface.co', 'modelscope.cn', 'www.modelscope.cn'])
const LAYER = 'application/vnd.ollama.image.'

const WEIGHTS = [`${LAYER}model`, `${LAYER}projector`]

/**
 * What would be taken for a model of Ollama's. Its template and parameters stay behind: a GGUF file has a template of
 * its own, and Ollama's is in another language than llama.cpp's.
 * @param blobs the files below `blobs`, by digest
 */
export function planOllama(manifest: OllamaManifest, blobs: ReadonlyMap<string, CacheFile>): Candidate {
  const { host, namespace, model, tag, path } = manifest
  const isLatest = tag.toLowerCase() === 'latest'
  // Such a tag may also be a file's whole name.
  const name = HUBS.has(host)
    ? validName(namespace, model, isLatest ? undefined : (labelFromFileName(tag) ?? tag))
    : validName(namespace, isLatest ? model : `${model}-${tag}`)
  const candidate: Candidate = { found: ollamaName(manifest), name, format: 'gguf', path, files: [] }
  const layers = layersOf(manifest.text)
  if (!layers) return { ...candidate, problem: `${path} is damaged. Pull the model again with Ollama.` }
  const models = layers.filter(layer => layer.mediaType === `${LAYER}model`)
  const projectors = layers.filter(layer => layer.mediaType === `${LAYER}projector`)
  let problem = layersProblem(layers, models, projectors)
  if (problem) return { ...candidate, problem }
  for (const layer of [...models, ...projectors]) {
    const role = layer === models[0] ? 'model' : 'projector'
    const blob = blobs.get(layer.sha256) ?? { path: '', source: layer.sha256, size: 0, content: 'missing' as const }
    const file = `${role === 'model' ? '' : 'mmproj-'}${model}-${tag}`.replace(/\.gguf$/i, '')
    candidate.files.push(adopted({ ...blob, claimedSha256: layer.sha256 }, `${file}.gguf`, role))
    problem ??= fileProblem(blob, 'gguf') ?? sizeProblem(blob, layer)
  }
  return { ...candidate, ...(problem && { problem }) }
}

/** As `ollama list` shows it. */
function ollamaName({ host, namespace, model, tag }: OllamaManifest): string {
  const library = host === 'registry.ollama.ai'
  return `${library ? '' : `${host}/`}${library && namespace === 'library' ? '' : `${namespace}/`}${model}:${tag}`
}

function layersProblem(layers: Layer[], models: Layer[], projectors: Layer[]): string | undefined {
  const has = (kind: string) => layers.some(layer => layer.mediaType === LAYER + kind)
  if (has('adapter')) {
    return 'It is a LoRA adapter on top of another model, which corral does not apply. Merge it into its base model first.'
  }
  if (has('tensor')) {
    return "It is in Ollama's own format (a file for each tensor), which llama.cpp does not read. Pull a GGUF of it."
  }
  if (models.length === 0) return "It has no weights on this machine: it runs on Ollama's servers, or is no model."
  if (models.length > 1 || projectors.length > 1) {
    return `Ollama keeps it in ${models.length + projectors.length} files that only Ollama puts together. Pull a GGUF of it.`
  }
  return undefined
}

function sizeProblem({ source, size }: CacheFile, layer: Layer): string | undefined {
  if (size === layer.size) return undefined
  return `${source} has ${size} bytes instead of ${layer.size}: its download was not finished, or it is damaged. Pull the model again with Ollama.`
}

/** Undefined for what is no manifest. */
function layersOf(text: string): Layer[] | undefined {
  const { value } = parseJson(text, ManifestSchema)
  return value && (value.layers ?? []).map(({ digest, ...layer }) => ({ ...layer, sha256: digest.slice(-64) }))
}
