import { join } from 'node:path'
import { parseGgufFileName, projectorFor, shardNames } from '../../core/models/gguf-file-name.ts'
import { describesSafetensors, isTokenizer } from '../../core/models/safetensors-layout.ts'
import { type CacheDisk, inspectFile } from './cache-disk.ts'
import { adopted, type CacheFile, type Candidate, fileProblem, validName } from './candidate.ts'

/** A model's folder as hubs lay it out: any number of quantizations, or SafeTensors weights, or both. */
export interface CachedRepository {
  owner: string
  name: string
  /** Absolute path. */
  folder: string
  files: CacheFile[]
  texts: FolderTexts
}

/** What would be taken of a repository: one model for each quantization, and one for the SafeTensors weights. */
export function planRepository({ owner, name, folder, files, texts }: CachedRepository): Candidate[] {
  const title = `${owner}/${name}`
  const sets = ggufSets(files)
  // Two models of one quantization in one folder are told apart by their files' names.
  const isAlone = (set: GgufSet) => sets.every(other => other === set || labelKey(other) !== labelKey(set))
  const candidates = sets.map((set): Candidate => {
    const first = set.files[0]!.path
    return {
      found: `${title}/${first}`,
      name: validName(owner, name, isAlone(set) ? set.label : set.title),
      format: 'gguf',
      path: join(folder, ...first.split('/')),
      files: [
        ...set.files.map(file => adopted(file, nameOf(file), 'model')),
        ...(set.projector ? [adopted(set.projector, nameOf(set.projector), 'projector')] : [])
      ],
      ...(set.problem ? { problem: set.problem } : {})
    }
  })
  const weights = planSafetensors(files, texts)
  if (weights) {
    candidates.push({ found: title, name: validName(owner, name), format: 'safetensors', path: folder, ...weights })
  }
  return candidates
}

const labelKey = ({ label }: GgufSet) => label?.toLowerCase()

/** The shards of one folder come together in one folder of the store. */
const nameOf = ({ path }: CacheFile) => path.slice(path.lastIndexOf('/') + 1)

/** One quantization of a model: its file, or all its shards, and what lets it see. */
export interface GgufSet {
  label: string | undefined
  /** Its file's name without folder, extension and shard number. */
  title: string
  /** In the order of the shards, as far as they are there. */
  files: CacheFile[]
  projector: CacheFile | undefined
  problem: string | undefined
}

/** The models among a folder's files. Drafts, data for quantization and projectors by themselves are none. */
export function ggufSets(files: readonly CacheFile[]): GgufSet[] {
  const byPath = new Map(files.map(file => [file.path, file]))
  const sets = new Map<string, GgufSet>()
  for (const file of files) {
    const { role, label, shard } = parseGgufFileName(file.path)
    const title = titleOf(file.path)
    if (role === 'split') {
      const problem =
        'It was cut into pieces that no engine loads. Join them in order with "cat", then import the file.'
      sets.set(title, { label, title, files: [...(sets.get(title)?.files ?? []), file], projector: undefined, problem })
      continue
    }
    const group = shard?.group ?? file.path
    if (role !== 'model' || sets.has(group)) continue
    const names = shardNames(file.path)
    const present = names.flatMap(name => byPath.get(name) ?? [])
    const missing = names.filter(name => !byPath.has(name))
    const projector = byPath.get(projectorFor(names[0]!, [...byPath.keys()]) ?? '')
    const problem =
      missing.length > 0
        ? `It is not complete: ${missing.length} of its ${names.length} files are missing. Download the rest.`
        : [...present, ...(projector ? [projector] : [])].map(each => fileProblem(each, 'gguf')).find(Boolean)
    sets.set(group, { label, title, files: present, projector, problem })
  }
  return [...sets.values()]
}

function titleOf(path: string): string {
  return path
    .split('/')
    .at(-1)!
    .replace(/\.gguf(?:\.part.*|-split-.*)?$/i, '')
    .replace(/-\d{5}-of-\d{5}$/, '')
}

/** Texts of a SafeTensors folder that say how its weights are to be read; undefined for files that are not there. */
export interface FolderTexts {
  /** config.json */
  config: string | undefined
  /** model.safetensors.index.json */
  index: string | undefined
}

const WEIGHTS = /^model[^/]*\.safetensors$/

/**
 * What would be taken of a folder with SafeTensors weights, or why nothing can; undefined when it has none.
 * @param files all files of the folder and those below
 */
export function planSafetensors(
  files: readonly CacheFile[],
  texts: FolderTexts
): Pick<Candidate, 'files' | 'problem'> | undefined {
  const paths = files.map(({ path }) => path)
  if (texts.index === undefined && !paths.some(path => /\.safetensors$/i.test(path))) return undefined
  const weights = texts.index === undefined ? paths.filter(path => WEIGHTS.test(path)) : indexed(texts.index)
  const missing = weights?.filter(path => !paths.includes(path)) ?? []
  const chosen = files.flatMap(file => {
    if (weights?.includes(file.path)) return adopted(file, file.path, 'model')
    return describesSafetensors(file.path) ? adopted(file, file.path, 'other') : []
  })
  const problem =
    configProblem(texts.config, paths.includes('adapter_config.json')) ??
    weightsProblem(weights, missing) ??
    files
      .filter(({ path }) => weights?.includes(path) || describesSafetensors(path))
      .map(file => fileProblem(file, 'safetensors'))
      .find(Boolean) ??
    (paths.some(isTokenizer)
      ? undefined
      : 'It has no tokenizer (tokenizer.json or tokenizer.model). Download the whole model.')
  return { files: chosen, ...(problem ? { problem } : {}) }
}

function configProblem(text: string | undefined, isAdapter: boolean): string | undefined {
  if (text === undefined) {
    return isAdapter
      ? 'It is a LoRA adapter, no whole model. Merge it into its base model first.'
      : 'It has no config.json. Download the whole model.'
  }
  let config: { quantization?: { group_size?: unknown } } | null
  try {
    config = JSON.parse(text)
  } catch {
    return 'Its config.json is damaged. Download the model again.'
  }
  if (config?.quantization?.group_size === undefined) return undefined
  return 'It is quantized for MLX, which llama.cpp does not read. Download a GGUF of it, or its original weights.'
}

function weightsProblem(weights: string[] | undefined, missing: string[]): string | undefined {
  if (!weights) return 'Its model.safetensors.index.json is damaged. Download the model again.'
  if (weights.length === 0) return 'It has no weights named model*.safetensors, which conversion needs.'
  if (missing.length === 0) return undefined
  const shown = missing.slice(0, 3).join(', ') + (missing.length > 3 ? ` and ${missing.length - 3} more` : '')
  return `It is not complete: ${shown} ${missing.length === 1 ? 'is' : 'are'} missing. Download the rest.`
}

/** The files that an index names; undefined when it is damaged or names files outside of its folder. */
function indexed(index: string): string[] | undefined {
  try {
    const weights = [...new Set(Object.values(JSON.parse(index).weight_map))]
    const areNames = weights.every(weight => typeof weight === 'string' && /^[^/\\]+$/.test(weight))
    return weights.length > 0 && areNames ? (weights as string[]) : undefined
  } catch {
    return undefined
  }
}

/** Reads a folder of a model's files, with what is needed to choose among them. */
export async function readModelFolder(
  folder: string,
  { owner, name }: Pick<CachedRepository, 'owner' | 'name'>,
  disk: CacheDisk
): Promise<CachedRepository> {
  const files: CacheFile[] = []
  for (const path of await disk.files(folder)) {
    files.push(await inspectFile(path, join(folder, ...path.split('/'))))
  }
  const textOf = async (name: string) =>
    files.some(({ path, content }) => path === name && content === 'other')
      ? await disk.text(join(folder, name))
      : undefined
  const texts = { config: await textOf('config.json'), index: await textOf('model.safetensors.index.json') }
  return { owner, name, folder, files, texts }
}

/** The models in a folder of LM Studio's: `<publisher>/<model>/<files>`. */
export async function findLmStudio(folder: string, disk: CacheDisk): Promise<Candidate[]> {
  const candidates: Candidate[] = []
  for (const owner of await disk.subfolders(folder)) {
    for (const name of await disk.subfolders(join(folder, owner))) {
      candidates.push(...planRepository(await readModelFolder(join(folder, owner, name), { owner, name }, disk)))
    }
  }
  return candidates
}
