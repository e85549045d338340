import { randomUUID } from 'node:crypto'

const ID = Buffer.from('"id":"chatcmpl-')
const ID_LENGTH = 32
const QUOTE = 34

/** A new id of an answer. Engines make their own of few random bits, so that they come again. */
export function answerId(kind: 'chatcmpl' | 'cmpl'): string {
  return `${kind}-${randomUUID().replaceAll('-', '')}`
}

/**
 * Writes names into the bytes of a hosted-chat stream without parsing it: within JSON texts quotes are escaped, so only
 * the members themselves look like what is replaced.
 * @param alias the model's name as the engine reports it
 * @param model the model's name as it was requested
 * @param id the answer's, of `answerId`
 */
export function renameBytes(alias: string, model: string, id: string): (bytes: Buffer) => Buffer {
  const digits = id.slice(-ID_LENGTH)
  const from = `"model":${JSON.stringify(alias)}`
  const to = `"model":${JSON.stringify(model)}`
  return given => {
    // The engine's own ids are as long, so the new one is written in their place.
    for (let at = given.indexOf(ID); at !== -1; at = given.indexOf(ID, at + 1)) {
      const start = at + ID.length
      if (given[start + ID_LENGTH] === QUOTE) given.write(digits, start, ID_LENGTH, 'latin1')
    }
    const renamed = from === to ? given : replaceAll(given, from, to)
    return id.startsWith('cmpl-') ? replaceAll(renamed, ID.toString('latin1'), '"id":"cmpl-') : renamed
  }
}

/** Both texts are ASCII; other bytes stay as they are. */
function replaceAll(bytes: Buffer, from: string, to: string): Buffer {
  if (!bytes.includes(from, 0, 'latin1')) return bytes
  return Buffer.from(
    bytes.toString('latin1').replaceAll(from, () => to),
    'latin1'
  )
}
