import { randomUUID } from 'node:crypto'

const ID = Buffer.from('"id":"chatcmpl-')
const ID_LENGTH = 32
const QUOTE = 34

/** A new id of an answer. Engines make theirs of few random bits, so that some come twice. */
export function answerId(kind: 'chatcmpl' | 'cmpl'): string {
  return `${kind}-${randomUUID().replaceAll('-', '')}`
}

/**
 * Replaces the model's name and the id in the bytes of a hosted-chat stream without parsing it: within JSON strings
 * quotes are escaped, so only the members themselves look like what is replaced.
 * @param alias the model's name as the engine reports it
 * @param model the model's name as it was requested
 * @param id the answer's, of `answerId`
 */
export function renameBytes(alias: string, model: string, id: string): (bytes: Buffer) => Buffer {
  const digits = Buffer.from(id.slice(-ID_LENGTH), 'latin1')
  const from = `"model":${JSON.stringify(alias)}`
  const to = `"model":${JSON.stringify(model)}`
  return given => {
    // The engine's own ids have the same length, so the new one is written over them.
    for (let at = given.indexOf(ID); at !== -1; at = given.indexOf(ID, at + 1)) {
      const start = at + ID.length
      if (given[start + ID_LENGTH] === QUOTE) given.set(digits, start)
    }
    const renamed = from === to ? given : replaceAll(given, from, to)
    return id.startsWith('cmpl-') ? replaceAll(renamed, ID.toString('latin1'), '"id":"cmpl-') : renamed
  }
}

/** Both texts are ASCII; other bytes stay as they are, since Latin-1 maps each byte to one character. */
function replaceAll(bytes: Buffer, from: string, to: string): Buffer {
  if (!bytes.includes(from, 0, 'latin1')) return bytes
  return Buffer.from(
    bytes.toString('latin1').replaceAll(from, () => to),
    'latin1'
  )
}
