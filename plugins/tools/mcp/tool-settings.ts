import { type Static, Type } from 'typebox'
import { Bytes, Duration, Path, Timeout } from '../../../core/config/core-schema.ts'
import { ROLES } from '../../../core/http/roles.ts'

/** corral's own tools. */
export const BUILT_IN = ['time', 'arithmetic', 'documents', 'fetch'] as const
export type BuiltIn = (typeof BUILT_IN)[number]

const Variables = (description: string) =>
  Type.Optional(Type.Record(Type.String(), Type.String(), { writeOnly: true, description }))

const ToolServer = Type.Object(
  {
    command: Type.Optional(
      Type.String({ minLength: 1, description: 'Program that speaks MCP over standard input and output' })
    ),
    arguments: Type.Optional(Type.Array(Type.String(), { description: 'Its arguments' })),
    environment: Variables(
      'More environment variables of the program; values may refer to variables of corral, as in the example'
    ),
    directory: Type.Optional(Path({ description: 'Its working directory' })),
    url: Type.Optional(
      Type.String({
        pattern: '^https?://\\S+$',
        title: 'an address such as https://search.internal/mcp',
        description: 'Address of a server that speaks MCP over HTTP, instead of "command"'
      })
    ),
    headers: Variables('Headers of requests to "url"; values may refer to variables of corral, as in the example'),
    built_in: Type.Optional(
      Type.Array(Type.Enum([...BUILT_IN]), {
        minItems: 1,
        uniqueItems: true,
        description: 'Tools of corral itself, instead of "command" or "url"'
      })
    ),
    tools: Type.Optional(
      Type.Array(Type.String(), { uniqueItems: true, description: 'The only tools that may be used' })
    ),
    resources: Type.Optional(
      Type.Boolean({
        description: 'Whether its resources can be listed and read; if absent, only if "tools" does not limit it'
      })
    ),
    prompts: Type.Optional(
      Type.Boolean({
        description: 'Whether users may use its prompts; if absent, only if "tools" does not limit it'
      })
    ),
    roles: Type.Optional(
      Type.Array(Type.Enum([...ROLES]), {
        minItems: 1,
        description: 'Lowest role that may use it, such as [user]; [operator] if absent'
      })
    ),
    ask: Type.Optional(
      Type.Enum(['never', 'writes', 'always'], {
        description:
          "Calls that need a user's approval: never, always, or only calls of tools that may write (writes, the default)"
      })
    ),
    isolate: Type.Optional(
      Type.Enum(['key'], {
        description:
          // biome-ignore lint/suspicious/noTemplateCurlyInString: a reference to a variable
          'key starts a separate process (or session) for each key, for servers that keep state; ${CORRAL_KEY} is the id of the key'
      })
    )
  },
  { additionalProperties: false }
)
export type ToolServer = Static<typeof ToolServer>

export const ToolSection = Type.Object(
  {
    servers: Type.Object(
      {},
      {
        patternProperties: { '^[a-z][a-z0-9-]{0,31}$': ToolServer },
        additionalProperties: false,
        default: {},
        needsTrust: true,
        description: 'Servers of tools by name; clients can name them, but never choose an address or a program',
        examples: [
          {
            files: {
              command: 'npx',
              arguments: ['-y', '@modelcontextprotocol/server-filesystem', '/srv/docs'],
              environment: { LOG_LEVEL: 'info' },
              directory: '/srv/docs',
              url: 'https://files.internal/mcp',
              // biome-ignore lint/suspicious/noTemplateCurlyInString: a reference to a variable
              headers: { Authorization: 'Bearer ${FILES_TOKEN}' },
              built_in: ['time', 'arithmetic', 'documents', 'fetch'],
              tools: ['read_text_file'],
              resources: true,
              prompts: true,
              roles: ['user'],
              ask: 'writes',
              isolate: 'key'
            }
          }
        ]
      }
    ),
    map: Type.Record(Type.String(), Type.String({ pattern: '^[^.]+\\..+$', title: 'server.tool' }), {
      default: {},
      description:
        "Tools that replace the vendors' hosted tools, by type without the date, such as web_search: search.web_search",
      examples: [{ web_search: 'search.web_search' }]
    }),
    embedding_model: Type.String({
      default: '',
      description: 'Embedding model for the built-in tool "documents"; the first installed one if empty'
    }),
    fetch_from: Type.Array(
      Type.String({
        pattern: '^(\\*|(\\*\\.)?[\\w.-]+|\\[[\\da-fA-F:.]+\\])(:\\d+)?$',
        title: 'a host such as docs.python.org, *.wikipedia.org or *'
      }),
      {
        default: [],
        needsTrust: true,
        description:
          'Hosts from which the built-in tool "fetch" gets pages; "*" is all. Private addresses must also be in "downloads.private_addresses"',
        examples: [['docs.python.org', '*.wikipedia.org']]
      }
    ),
    max_calls: Type.Integer({ default: 16, minimum: 1, maximum: 1000, description: 'Maximum calls during one answer' }),
    call_timeout: Timeout({ default: '60s', description: 'How long a call may take' }),
    max_result: Bytes({ default: '64KiB', description: 'Text of a result that the model gets; the rest is cut off' }),
    start_timeout: Timeout({ default: '60s', description: 'How long a server may take to start or to list its tools' }),
    idle: Duration({ default: '10m', description: 'How long a server stays without calls before it is stopped' })
  },
  { additionalProperties: false, restart: true }
)
export type ToolSection = Static<typeof ToolSection>
