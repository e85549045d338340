import { type Static, Type } from 'typebox'
import type { HostedEvent, ToolRequest } from '../contracts/tool-host.ts'
import { Given, Loose, Text, Titled } from '../http/request-fields.ts'

/* Tools that corral runs, in APIs whose vendors have no fields for them: the field `mcp` of requests and replies. */

export const ToolApprovals = Given(
  Loose(
    {
      approves: Given(Type.Boolean({ description: 'Whether calls that need an approval wait for it' })),
      approvals: Given(Type.Array(Loose({ id: Type.String(), approve: Type.Boolean() }), { maxItems: 64 }))
    },
    { description: 'Approvals of tools that corral runs; the header X-Corral-Tools names the tools' }
  )
)
type ToolApprovals = Static<typeof ToolApprovals>

export const ResultFileSchema = Titled('ToolResultFile', {
  name: Type.String(),
  type: Text('Its media type, as the server of tools says'),
  data: Text('Base64')
})

const HostedSchema = Titled('HostedToolCall', {
  type: Type.Enum(['call', 'result', 'approval'], { description: 'It begins, it has ended, or it needs an approval' }),
  id: Text('Of the call; of the approval for "approval"'),
  approval: Type.Optional(Text('The id of the approval that the user has decided about')),
  server: Type.String(),
  tool: Type.String(),
  name: Text('The name that the model called'),
  arguments: Text('JSON'),
  output: Type.Optional(Type.String()),
  failed: Type.Optional(Type.Boolean()),
  files: Type.Optional(Type.Array(ResultFileSchema, { description: 'Images and other files of the result' }))
})
export const hostedFields = {
  mcp: Type.Optional(Type.Array(HostedSchema, { description: 'Calls of tools that corral runs' }))
}

/** Returns what a client is told about an event. */
export function hostedCalls(event: HostedEvent): object[] {
  if (event.type === 'tools') return []
  const { type, call, ...result } = event
  const { id, approval, server, tool, name, arguments: given } = call
  const ids = type === 'approval' ? { id: approval } : { id, ...(approval !== undefined && { approval }) }
  return [{ type, ...ids, server, tool, name, arguments: given, ...result }]
}

/** Reads what a request says about tools that corral runs. */
export function toolRequest({ mcp }: { mcp?: ToolApprovals }): ToolRequest | undefined {
  if (!mcp) return undefined
  const decisions = (mcp.approvals ?? []).map((each, at) => ({ ...each, param: `mcp.approvals[${at}].id` }))
  return { wanted: [], approves: mcp.approves === true, decisions }
}
