import { version } from '../../core/system/package-info.ts'
import type { DocumentInfo } from './openapi.ts'

/** What the document says of the service as a whole. */
export const documentInfo: DocumentInfo = {
  title: 'corral',
  version,
  summary: 'A local model server',
  description:
    'Models have names of the form `<owner>/<name>`, or `<owner>/<name>:<variant>` for one of several quantizations.\n\n' +
    'Bodies are JSON, whatever their `Content-Type` says. `null` counts as not given, and fields that nobody knows are ' +
    'ignored. A `GET` answers to `HEAD` too.\n\n' +
    'A key is needed only where `security.api_keys` of the configuration has any.',
  license: { name: 'MIT', identifier: 'MIT' }
}
