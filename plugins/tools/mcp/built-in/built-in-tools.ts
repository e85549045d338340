import { Type } from 'typebox'
import type { HostTool } from '../../../../core/contracts/tool-host.ts'
import { faultSentence, findFault } from '../../../../core/system/schema-check.ts'
import type { BuiltIn } from '../tool-settings.ts'
import type { BuiltInCall, BuiltInContext, Run } from './built-in-call.ts'

/* corral's own tools. They run in this process, and each is loaded by its first call. */

interface Definition {
  description: string
  parameters: ReturnType<typeof Type.Object>
  load(context: BuiltInContext): Promise<Run>
}

const closed = { additionalProperties: false }

const DEFINITIONS: Record<BuiltIn, Definition> = {
  time: {
    description: 'Returns the current date, time and weekday.',
    parameters: Type.Object(
      { timezone: Type.Optional(Type.String({ description: "Such as Europe/Berlin; the server's if absent" })) },
      closed
    ),
    load: async () => (await import('./current-time.ts')).currentTime
  },
  arithmetic: {
    description:
      'Calculates exactly with decimal numbers: + - * / % ** ! ( ), pi, e, and abs, round, floor, ceil, trunc, sqrt, cbrt, exp, ln, log, log2, sin, cos, tan, asin, acos, atan, min, max.',
    parameters: Type.Object({ expression: Type.String({ description: 'Such as round(1250 * 1.19 ** 2, 2)' }) }, closed),
    load: async () => (await import('./arithmetic.ts')).calculate
  },
  documents: {
    description:
      "Searches the user's uploaded documents by meaning. Returns passages with their file and page or lines, which an answer should name.",
    parameters: Type.Object(
      {
        query: Type.String({ minLength: 1, maxLength: 2000, description: 'What to find, as a phrase or question' }),
        files: Type.Optional(
          Type.Array(Type.String(), { maxItems: 50, description: 'Names or ids of the only files to search' })
        ),
        limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 20, description: 'Maximum passages; 5 if absent' }))
      },
      closed
    ),
    load: async context => {
      const { DocumentSearch } = await import('./document-search.ts')
      const search = new DocumentSearch(context)
      return (given, call) => search.run(given, call)
    }
  },
  fetch: {
    description: 'Fetches a web page or a text file over https, and returns its text.',
    parameters: Type.Object(
      {
        url: Type.String({ maxLength: 2000, description: 'An address that begins with https://' }),
        start: Type.Optional(
          Type.Integer({ minimum: 0, description: 'Character to begin at, to continue a long text' })
        )
      },
      closed
    ),
    load: async context => {
      const { fetchPage } = await import('./fetch-page.ts')
      return (given, call) => fetchPage(given, call, context)
    }
  }
}

export const builtInTools = (server: string, names: readonly BuiltIn[]): Omit<HostTool, 'asks'>[] =>
  names.map(name => {
    const { description, parameters } = DEFINITIONS[name]
    return { server, name, description, parameters: parameters as unknown as HostTool['parameters'], readOnly: true }
  })

/** Runs the tools. @throws Error whose message is for the model */
export function builtInRunner(context: BuiltInContext) {
  const loaded = new Map<BuiltIn, Promise<Run>>()
  return async (name: BuiltIn, given: object, call: BuiltInCall): Promise<string> => {
    const { parameters, load } = DEFINITIONS[name]
    const fault = findFault(parameters, given)
    if (fault) throw new Error(faultSentence(fault, 'The arguments'))
    const loading = loaded.get(name) ?? load(context)
    loaded.set(name, loading)
    return await (await loading)(given, call)
  }
}
