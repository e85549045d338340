import type { ModelName } from '../models/model-name.ts'
import type { Waiting } from './progress.ts'
import type { StoredVariant } from './storage.ts'

/** A model in another tool's cache. */
export interface FoundModel {
  /** Names it for `adopt`: what it is called in that tool. */
  found: string
  /** What it would be called here: `owner/name` or `owner/name:LABEL`. */
  name: string
  format: 'gguf' | 'safetensors'
  /** Bytes of all its files. */
  size: number
  /** Absolute path of its (first) file, or of its folder where it is one. */
  path: string
  /** Why it cannot be taken: a sentence. */
  problem?: string
  /** These files are stored already. */
  present: boolean
  /** Under which name they are. */
  storedAs?: string
}

export interface FoundModels {
  /** The tool: `huggingface`, `ollama`, `lm-studio`. */
  from: string
  /** Where was looked: an absolute path, or several with commas between. */
  folder: string
  /** By name. */
  models: FoundModel[]
  /** What could not be looked at, a sentence each. */
  unreadable?: string[]
}

/** Takes over models that other tools have downloaded. */
export interface Adoption {
  /**
   * Looks into a tool's cache; empty where there is none.
   * @throws CorralError `invalid_request` for an unknown tool, or when the cache may not be read
   */
  find(from: string): Promise<FoundModels>
  /**
   * Stores what was found, by link where possible.
   * @param name undefined takes the name it was found with
   * @returns `linked`: its weights were not copied
   * @throws CorralError `model_not_found` where the cache has no such model, `invalid_request` with its problem, and
   * whatever Storage.adopt throws
   */
  adopt(
    from: string,
    found: string,
    name: ModelName | undefined,
    waiting: Waiting
  ): Promise<{ variant: StoredVariant; linked: boolean }>
}
