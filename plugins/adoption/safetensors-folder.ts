import { describesSafetensors, isTokenizer } from '../../core/models/safetensors-layout.ts'
import { adopted, type CacheFile, type Candidate, fileProblem } from './candidate.ts'

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
