import { join } from 'node:path'
import { Type } from 'typebox'
import type { ModelDefaults } from '../../../core/contracts/models.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { MAX_DEFAULT_CHARACTERS, type NewDefaults, readDefaults } from '../../../core/models/new-defaults.ts'
import { checkJson, parseJson } from '../../../core/system/json-file.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { type CacheDisk, type CacheFile, type Candidate, fileProblem, toImportedFile, validName } from './cache-disk.ts'

/** Finds the models in a folder of Ollama's, which has `manifests` and `blobs`. */
export async function findOllama(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  const blobs: Blobs = { weights: new Map(), texts: new Map() }
  for (const manifest of await readManifests(join(folder, 'manifests'), disk)) {
    for (const { kind, sha256, size } of parseLayers(manifest.content) ?? []) {
      const name = `sha256-${sha256}`
      const path = join(folder, 'blobs', name)
      if (WEIGHTS.has(kind) && !blobs.weights.has(sha256)) blobs.weights.set(sha256, await disk.file(name, path))
      if (!SETTINGS.has(kind) || blobs.texts.has(sha256) || size > MAX_SETTING_BYTES) continue
      blobs.texts.set(sha256, await disk.text(path))
    }
    candidates.push(planOllama(manifest, blobs))
  }
  return candidates
}

/** Files below Ollama's `blobs`, by digest: facts about the weights, and the settings as text. */
interface Blobs {
  weights: Map<string, CacheFile>
  texts: Map<string, string | undefined>
}

async function readManifests(folder: string, disk: CacheDisk): Promise<OllamaManifest[]> {
  const manifests: OllamaManifest[] = []
  for (const file of await disk.files(folder)) {
    const [host, namespace, model, tag, ...deeper] = file.split('/') as [string, string, string, ...string[]]
    if (tag === undefined || deeper.length > 0) continue
    const path = join(folder, host, namespace, model, tag)
    const text = await disk.text(path)
    if (text === undefined) continue
    const { value: content } = await parseUntrustedJson(text)
    manifests.push({ host, namespace, model, tag, path, content })
  }
  return manifests
}

/** A manifest below Ollama's `manifests/<host>/<namespace>/<model>/<tag>`. */
interface OllamaManifest {
  host: string
  namespace: string
  model: string
  tag: string
  path: string
  content: unknown
}

const ManifestSchema = Type.Object({
  layers: Type.Optional(
    Type.Array(
      Type.Object({
        mediaType: Type.String(),
        digest: Type.String({ pattern: '^sha256[:-][0-9a-f]{64}$' }),
        size: Type.Number()
      }),
      { maxItems: 1000 }
    )
  )
})

const LAYER = 'application/vnd.ollama.image.'
const WEIGHTS = new Set(['model', 'projector'])
const SETTINGS = new Map([
  ['system', 'system message'],
  ['params', 'parameters'],
  ['template', 'template'],
  ['messages', 'messages'],
  ['license', 'license']
])
/** A character takes up to four bytes, and JSON escapes some. */
const MAX_SETTING_BYTES = 8 * MAX_DEFAULT_CHARACTERS

/** Plans the import of a model. The tag becomes the variant, so that Ollama's name works here too. */
export function planOllama(manifest: OllamaManifest, blobs: Blobs): Candidate {
  const { namespace, model, tag, path } = manifest
  const found = formatOllamaName(manifest)
  const candidate: Candidate = { found, name: validName(namespace, model, tag), tag, format: 'gguf', path, files: [] }
  const layers = parseLayers(manifest.content)
  if (!layers) return { ...candidate, problem: `${path} is damaged. Pull the model again with Ollama.` }
  const models = layers.filter(({ kind }) => kind === 'model')
  const projectors = layers.filter(({ kind }) => kind === 'projector')
  let problem = layersProblem(layers, models, projectors)
  if (problem) return { ...candidate, problem }
  for (const layer of [...models, ...projectors]) {
    const role = layer === models[0] ? 'model' : 'projector'
    const missing = { path: '', source: layer.sha256, size: 0, content: 'missing' as const }
    const blob = blobs.weights.get(layer.sha256) ?? missing
    const file = `${role === 'model' ? '' : 'mmproj-'}${model}-${tag}`.replace(/\.gguf$/i, '')
    candidate.files.push(toImportedFile({ ...blob, claimedSha256: layer.sha256 }, `${file}.gguf`, role))
    problem ??= fileProblem(blob, 'gguf') ?? sizeProblem(blob, layer)
  }
  return { ...candidate, ...readSettings(layers, blobs.texts), ...(problem && { problem }) }
}

const ParametersSchema = Type.Record(Type.String(), Type.Unknown())
const MessagesSchema = Type.Array(Type.Object({ role: Type.String(), content: Type.Optional(Type.String()) }))

/** Reads a model's settings. A setting that cannot be imported is named in the notes. The others are imported. */
function readSettings(layers: readonly Layer[], texts: Blobs['texts']) {
  const notes: string[] = []
  const defaults: ModelDefaults = {}
  const licenses: string[] = []
  let hasGoTemplate = false as boolean
  function take(what: string, given: NewDefaults): void {
    try {
      const { options, ...others } = readDefaults(given)
      Object.assign(defaults, others, options && { options: { ...defaults.options, ...options } })
    } catch (error) {
      if (given.template && error instanceof CorralError && error.code === 'unsupported_capability') {
        // A template that only repeats the prompt is not a chat template.
        hasGoTemplate = !/^\s*\{\{-?\s*\.Prompt\s*-?\}\}\s*$/.test(given.template)
      } else notes.push(`Its ${what} cannot be imported: ${errorMessage(error)}`)
    }
  }
  for (const { kind, sha256 } of layers) {
    const what = SETTINGS.get(kind)
    if (what === undefined) continue
    const text = texts.get(sha256)
    if (text === undefined) notes.push(`Its ${what} cannot be imported: its file is missing, unreadable or too long.`)
    else if (kind === 'license') licenses.push(text)
    else if (kind === 'params') {
      const { value, fault } = parseJson(text, ParametersSchema)
      if (!value) notes.push(`Its ${what} cannot be imported: ${fault}.`)
      for (const [name, setting] of Object.entries(value ?? {})) {
        take(`parameter ${name}`, { parameters: { [name]: setting } })
      }
    } else if (kind === 'messages') {
      const { value, fault } = parseJson(text, MessagesSchema)
      if (value) take(what, { messages: value })
      else notes.push(`Its ${what} cannot be imported: ${fault}.`)
    } else take(what, { [kind]: text })
  }
  if (licenses.length > 0) take('license', { license: licenses })
  return {
    ...(Object.keys(defaults).length > 0 && { defaults }),
    ...(hasGoTemplate && { hasGoTemplate }),
    ...(notes.length > 0 && { notes })
  }
}

function formatOllamaName({ host, namespace, model, tag }: OllamaManifest): string {
  const library = host === 'registry.ollama.ai'
  return `${library ? '' : `${host}/`}${library && namespace === 'library' ? '' : `${namespace}/`}${model}:${tag}`
}

function layersProblem(layers: Layer[], models: Layer[], projectors: Layer[]): string | undefined {
  const has = (wanted: string) => layers.some(({ kind }) => kind === wanted)
  const adapter = layers.find(({ kind }) => kind === 'adapter')
  if (adapter) {
    return (
      `It is a LoRA adapter (blobs/sha256-${adapter.sha256}) on top of another model. Import that model, then name the ` +
      "adapter's file in config.yaml (models.<name>.lora), or merge the two and import the result."
    )
  }
  if (has('tensor')) {
    return "It is in Ollama's own format (a file for each tensor), which llama.cpp does not read. Pull a GGUF of it."
  }
  if (models.length === 0) return "It has no weights on this machine: it runs on Ollama's servers, or is not a model."
  if (models.length > 1 || projectors.length > 1) {
    return `Ollama stores it in ${models.length + projectors.length} files that only Ollama can combine. Pull a GGUF of it.`
  }
  return undefined
}

function sizeProblem({ source, size }: CacheFile, layer: Layer): string | undefined {
  if (size === layer.size) return undefined
  return `${source} has ${size} bytes instead of ${layer.size}: its download was not finished, or it is damaged. Pull the model again with Ollama.`
}

function parseLayers(content: unknown) {
  const { value } = checkJson(content, ManifestSchema)
  if (!value) return undefined
  return (value.layers ?? []).map(({ mediaType, digest, size }) => {
    return { kind: mediaType.replace(LAYER, ''), sha256: digest.slice(-64), size }
  })
}
type Layer = NonNullable<ReturnType<typeof parseLayers>>[number]
