import type { FileRole } from './gguf-file-name.ts'

/** Architectures of GGUF files for image and video generation, which llama.cpp cannot load. */
const IMAGE_MODELS = new Set(
  'flux sd1 sdxl sd3 aura hidream cosmos ltxv hyvid wan lumina2 qwen_image z_image chroma kandinsky5 pig'.split(' ')
)
const DRAFTS = new Set('eagle3 dflash gemma4-assistant'.split(' '))
/** Converts the output of a speech model to sound. */
const VOCODERS = new Set(['wavtokenizer-dec'])

export function ggufPurpose(keys: Record<string, unknown>): Exclude<FileRole, 'split'> {
  const { 'general.type': type, 'general.architecture': architecture } = keys
  if (type === 'adapter' || type === 'imatrix') return type
  if (type === 'mmproj' || architecture === 'clip') return 'projector'
  if (typeof architecture !== 'string') return 'model'
  if (IMAGE_MODELS.has(architecture)) return 'image'
  if (DRAFTS.has(architecture)) return 'draft'
  return VOCODERS.has(architecture) ? 'other' : 'model'
}

/** Identifies a model by its names, size and shape. Undefined if the header has no names. */
export function ggufIdentity(keys: Record<string, unknown>): string | undefined {
  const { 'general.architecture': architecture, 'general.name': name, 'general.basename': basename } = keys
  if (typeof architecture !== 'string' || !(name || basename)) return undefined
  const general = ['name', 'basename', 'finetune', 'size_label', 'version'].map(key => keys[`general.${key}`])
  const shape = ['block_count', 'embedding_length', 'feed_forward_length', 'expert_count', 'context_length'].map(
    key => keys[`${architecture}.${key}`]
  )
  return JSON.stringify([architecture, ...general, ...shape])
}
