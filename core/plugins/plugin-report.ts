import { type Static, Type } from 'typebox'

const Names = (description: string) => Type.Array(Type.String(), { description })

/** The state of one plugin, and what it offers. */
export const PluginReportSchema = Type.Object(
  {
    name: Type.String(),
    description: Type.String(),
    api: Type.Integer({ description: 'Version of the plugin contract that it is written for' }),
    path: Type.Optional(Type.String({ description: 'File that it was loaded from; absent for built-in ones' })),
    optional: Type.Boolean({ description: 'Whether the server continues without it when it fails' }),
    state: Type.Enum(['waiting', 'active', 'disabled', 'failed']),
    reason: Type.Optional(Type.String({ description: 'Why it is disabled or failed' })),
    needs: Names('Services of other plugins that it needs'),
    services: Names('Services that it offers to other plugins'),
    routes: Names('Such as GET /api/tags'),
    web: Type.Optional(
      Type.Object(
        { title: Type.String(), path: Type.String() },
        { description: "Its own page, which the server's page shows in a frame" }
      )
    ),
    hooks: Names('The hooks that it uses, such as request')
  },
  { title: 'Plugin' }
)
export type PluginReport = Static<typeof PluginReportSchema>
