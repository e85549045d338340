import { type ModelName, parseModelName } from '../../core/models/model-name.ts'

/** Longest part of a model's name. */
const LONGEST = 96

/**
 * A model name as near as possible to what another tool calls it: what corral does not allow becomes `-`.
 * @param variant `latest` and an empty one are none
 */
export function validName(owner: string, name: string, variant?: string): ModelName {
  const bare = `${validPart(owner)}/${validPart(name)}`
  return parseModelName(variant ? `${bare}:${validPart(variant)}` : bare)
}

function validPart(text: string): string {
  const part = text
    .replace(/[^A-Za-z0-9._-]+/g, '-')
    .replace(/\.{2,}/g, '.')
    .replace(/^[._-]+/, '')
    .slice(0, LONGEST)
    .replace(/[.-]+$/, '')
  if (part === '') return 'model'
  // Windows keeps some names for devices.
  return /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)/i.test(part) ? `model-${part}`.slice(0, LONGEST) : part
}
