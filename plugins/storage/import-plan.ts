import type { StoredFile } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import {
  labelFromFileName,
  parseGgufFileName,
  projectorFor,
  shardNames,
  storedName
} from '../../core/models/gguf-file-name.ts'
import { describesSafetensors, isTokenizer } from '../../core/models/safetensors-layout.ts'

/** A file that an import takes: where it lies below the source folder, and its name in the store. */
export interface PlannedFile {
  source: string
  path: string
  role: StoredFile['role']
}

export interface ImportPlan {
  format: 'gguf' | 'safetensors'
  /** Model files first, in the order of their shards. */
  files: PlannedFile[]
}

const isModelGguf = (name: string) => !name.includes('/') && parseGgufFileName(name).role === 'model'
const refuse = (message: string) => new CorralError('invalid_request', message, { param: 'path' })

/**
 * What belongs to a GGUF file that was named: its other shards and its projector.
 * @param names the files of its folder, itself included
 * @throws CorralError `invalid_request` naming the shards that are missing
 */
export function planGgufFile(folder: string, fileName: string, names: string[]): ImportPlan {
  const shards = shardNames(fileName)
  const missing = shards.filter(shard => !names.includes(shard))
  if (missing.length > 0) {
    throw refuse(
      `${folder} holds only a part of ${fileName}'s model: ${listed(missing)} ${missing.length === 1 ? 'is' : 'are'} ` +
        'missing. Put all shards into one folder, then repeat the import.'
    )
  }
  const files: PlannedFile[] = shards.map(name => ({ source: name, path: storedName(name), role: 'model' }))
  const projector = projectorFor(
    fileName,
    names.filter(name => !name.includes('/'))
  )
  if (projector) files.push({ source: projector, path: storedName(projector), role: 'projector' })
  return { format: 'gguf', files }
}

/**
 * What an import of a folder takes. SafeTensors weights go before GGUF files, which can be named by themselves.
 * @param names the folder's files, those of subfolders with forward slashes
 * @param weightsInIndex files that model.safetensors.index.json names, where there is one
 * @param variant label that the model's name carries: it picks one of several quantizations
 * @throws CorralError `invalid_request` saying what is missing, or listing what there is to choose from
 */
export function planFolder(
  folder: string,
  names: string[],
  weightsInIndex: string[] | undefined,
  variant?: string
): ImportPlan {
  const models = names.filter(name => isModelGguf(name) && shardNames(name)[0] === name)
  const orphans = names.filter(name => isModelGguf(name) && !models.includes(shardNames(name)[0]!))
  const wanted = [...models, ...orphans].filter(
    name => variant && labelFromFileName(name)?.toLowerCase() === variant.toLowerCase()
  )
  if (wanted.length === 1) return planGgufFile(folder, wanted[0]!, names)
  if (names.some(name => name.endsWith('.safetensors') && !name.includes('/'))) {
    return planSafetensors(folder, names, weightsInIndex)
  }
  const choices = [...models, ...orphans.slice(0, models.length === 0 ? 1 : 0)]
  if (choices.length === 1) return planGgufFile(folder, choices[0]!, names)
  if (choices.length === 0) {
    throw refuse(
      `${folder} holds no model: neither a GGUF file nor SafeTensors weights (config.json with model*.safetensors).`
    )
  }
  throw refuse(
    `${folder} holds ${choices.length} models: ${listed(choices)}. Name the file to import, ` +
      'or add its label to the name, as in <owner>/<name>:Q4_K_M.'
  )
}

function planSafetensors(folder: string, names: string[], weightsInIndex: string[] | undefined): ImportPlan {
  if (!names.includes('config.json')) {
    const adapter = names.includes('adapter_config.json')
    throw refuse(
      adapter
        ? `${folder} holds a LoRA adapter, no whole model. Merge it into its base model, then import the result.`
        : `${folder} holds SafeTensors weights without config.json. Download the model's whole folder.`
    )
  }
  const weights = weightsInIndex ?? names.filter(name => /^model[^/]*\.safetensors$/.test(name))
  if (weights.length === 0) {
    const others = names.filter(name => name.endsWith('.safetensors'))
    throw refuse(
      `${folder} holds ${listed(others)}, but no weights named model*.safetensors, which conversion needs. ` +
        "Download the model's files in Hugging Face's layout."
    )
  }
  const expected = new Set(weights.flatMap(shardNames))
  const missing = [...expected].filter(name => !names.includes(name))
  if (missing.length > 0) {
    throw refuse(
      `${folder} is not complete: ${listed(missing)} ${missing.length === 1 ? 'is' : 'are'} missing. ` +
        'Download the rest, then repeat the import.'
    )
  }
  if (!names.some(isTokenizer)) {
    throw refuse(`${folder} holds no tokenizer (tokenizer.json or tokenizer.model). Download the model's whole folder.`)
  }
  const others = names.filter(name => !expected.has(name) && describesSafetensors(name))
  return {
    format: 'safetensors',
    files: [
      ...[...expected].sort().map(name => ({ source: name, path: name, role: 'model' as const })),
      ...others.sort().map(name => ({ source: name, path: name, role: 'other' as const }))
    ]
  }
}

function listed(names: string[]): string {
  const shown = names.slice(0, 12).join(', ')
  return names.length > 12 ? `${shown} and ${names.length - 12} more` : shown
}
