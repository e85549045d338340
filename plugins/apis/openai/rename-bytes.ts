import { randomUUID } from 'node:crypto'

const ID = Buffer.from('"id":"chatcmpl-')
const ID_LENGTH = 32
const QUOTE = 34

/** Generates the id of an answer. The ids of engines have too few random bits to be unique. */
export function answerId(kind: 'chatcmpl' | 'cmpl'): string {
  return `${kind}-${randomUUID().replaceAll('-', '')}`
}

/**
 * Returns a function that replaces the model name and the id in the bytes of a chat stream without parsing it. This is
 * safe because quotes within JSON strings are escaped.
 * @param alias the model name that the engine reports
 * @param model the model name in the request
 * @param id the id of the answer, from `answerId`
 */
export function renameBytes(alias: string, model: string, id: string): (bytes: Buffer) => Buffer {
  const digits = Buffer.from(id.slice(-ID_LENGTH), 'latin1')
  const from = `"model":${JSON.stringify(alias)}`
  const to = `"model":${JSON.stringify(model)}`
  return given => {
    // The engine's ids have the same length, so the new id overwrites them in place.
    for (let at = given.indexOf(ID); at !== -1; at = given.indexOf(ID, at + 1)) {
      const start = at + ID.length
      if (given[start + ID_LENGTH] === QUOTE) given.set(digits, start)
    }
    const renamed = from === to ? given : replaceAll(given, from, to)
    return id.startsWith('cmpl-') ? replaceAll(renamed, ID.toString('latin1'), '"id":"cmpl-') : renamed
  }
}

/** Both texts are ASCII. Latin-1 maps each byte to one character, so all other bytes stay the same. */
function replaceAll(bytes: Buffer, from: string, to: string): Buffer {
  if (!bytes.includes(from, 0, 'latin1')) return bytes
  return Buffer.from(
    bytes.toString('latin1').replaceAll(from, () => to),
    'latin1'
  )
}
