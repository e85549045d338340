import { join } from 'node:path'
import { labelFromFileName } from '../../core/models/gguf-file-name.ts'
import { type CacheDisk, inspectFile } from './cache-disk.ts'
import { adopted, type CacheFile, type Candidate, fileProblem, validName } from './candidate.ts'

/** The models in a folder of Ollama's, which holds `manifests` and `blobs`. */
export async function findOllama(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  const blobs = new Map<string, CacheFile>()
  for (const manifest of await readManifests(join(folder, 'manifests'), disk)) {
    for (const sha256 of ollamaBlobs(manifest)) {
      if (blobs.has(sha256)) continue
      const name = `sha256-${sha256}`
      blobs.set(sha256, await inspectFile(name, join(folder, 'blobs', name)))
    }
    candidates.push(planOllama(manifest, blobs))
  }
  return candidates
}

async function readManifests(folder: string, disk: CacheDisk): Promise<OllamaManifest[]> {
  const manifests: OllamaManifest[] = []
  for (const host of await disk.subfolders(folder)) {
    for (const namespace of await disk.subfolders(join(folder, host))) {
      for (const model of await disk.subfolders(join(folder, host, namespace))) {
        for (const { name: tag } of (await disk.entries(join(folder, host, namespace, model))) ?? []) {
          const path = join(folder, host, namespace, model, tag)
          const text = tag.startsWith('.') ? undefined : await disk.text(path)
          if (text !== undefined) manifests.push({ host, namespace, model, tag, path, text })
        }
      }
    }
  }
  return manifests
}

/** A manifest as it lies below Ollama's `manifests/<host>/<namespace>/<model>/<tag>`. */
export interface OllamaManifest {
  host: string
  namespace: string
  model: string
  tag: string
  /** Absolute path. */
  path: string
  text: string
}

interface Layer {
  mediaType: string
  /** 64 hex digits. */
  sha256: string
  size: number
}

/** Hosts that models are pulled from by their repository's name, with the quantization as the tag. */
const HUBS = new Set(['hf.co', 'huggingface.co', 'modelscope.cn', 'www.modelscope.cn'])
const LAYER = 'application/vnd.ollama.image.'

/** The digests (64 hex digits) of the weights that a manifest names; none when it is damaged. */
export function ollamaBlobs(manifest: OllamaManifest): string[] {
  return (layersOf(manifest.text) ?? []).filter(isWeights).map(layer => layer.sha256)
}

/**
 * What would be taken for a model of Ollama's. Its template and parameters stay behind: a GGUF file has a template of
 * its own, and Ollama's is in another language than llama.cpp's.
 * @param blobs what lies below `blobs`, by digest
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
  const problem = layersProblem(layers, models, projectors)
  if (problem) return { ...candidate, problem }

  const files: Candidate['files'] = []
  let fault: string | undefined
  for (const [layer, file, role] of [
    [models[0]!, `${model}-${tag}`, 'model'] as const,
    ...projectors.map(layer => [layer, `mmproj-${model}-${tag}`, 'projector'] as const)
  ]) {
    const blob = blobs.get(layer.sha256) ?? { path: '', source: layer.sha256, size: 0, content: 'missing' as const }
    files.push(adopted({ ...blob, claimedSha256: layer.sha256 }, `${file.replace(/\.gguf$/i, '')}.gguf`, role))
    fault ??= fileProblem(blob, 'gguf') ?? sizeProblem(blob, layer)
  }
  return { ...candidate, files, ...(fault ? { problem: fault } : {}) }
}

/** As `ollama list` shows it. */
function ollamaName({ host, namespace, model, tag }: OllamaManifest): string {
  const library = host === 'registry.ollama.ai'
  return `${library ? '' : `${host}/`}${library && namespace === 'library' ? '' : `${namespace}/`}${model}:${tag}`
}

const isWeights = ({ mediaType }: Layer) => mediaType === `${LAYER}model` || mediaType === `${LAYER}projector`

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
  let manifest: { layers?: unknown }
  try {
    manifest = JSON.parse(text)
  } catch {
    return undefined
  }
  if (typeof manifest !== 'object' || manifest === null) return undefined
  const layers: Layer[] = []
  for (const layer of Array.isArray(manifest.layers) ? manifest.layers : []) {
    const { mediaType, digest, size } = layer ?? {}
    const sha256 = /^sha256[:-]([0-9a-f]{64})$/.exec(String(digest))?.[1]
    if (typeof mediaType !== 'string' || typeof size !== 'number' || !sha256) return undefined
    layers.push({ mediaType, sha256, size })
  }
  return layers
}
