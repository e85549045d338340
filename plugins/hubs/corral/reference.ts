import { CorralError } from '../../../core/errors.ts'

/** Port of a corral that is named without one. */
const USUAL_PORT = 11435

export interface CorralReference {
  /** Address of the server that the reference names itself. */
  endpoint?: string
  /** `owner/name` */
  id: string
}

/**
 * Reads `owner/name` or `[[corral:]//]host:port/owner/name`.
 * @throws CorralError `invalid_model_name` for anything else
 */
export function parseCorralReference(text: string): CorralReference {
  const match =
    /^(?:(?:corral:)?\/\/)?(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?\/)?([^/\s]+\/[^/\s]+)$/.exec(text)
  const [, host, port, id] = match ?? []
  if (!id || (/^(corral:)?\/\//.test(text) && !host)) {
    throw new CorralError(
      'invalid_model_name',
      `"${text.slice(0, 120)}" names no model of another corral. Write corral://<host>:<port>/<owner>/<name>, or corral:<owner>/<name> with corral-hub.endpoint set.`,
      { param: 'model' }
    )
  }
  return host === undefined ? { id } : { id, endpoint: `http://${host}:${port ?? USUAL_PORT}` }
}
