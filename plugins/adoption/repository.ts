import { join } from 'node:path'
import { adopted, type CacheFile, type Candidate } from './candidate.ts'
import { type GgufSet, ggufSets } from './gguf-sets.ts'
import { type FolderTexts, planSafetensors } from './safetensors-folder.ts'
import { validName } from './valid-name.ts'

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
