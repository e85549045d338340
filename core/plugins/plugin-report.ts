import { type Static, Type } from 'typebox'
import { Flag, Group, Integer, Text, Texts, Titled } from '../http/request-fields.ts'

/** The state of one plugin, and what it offers. */
export const PluginReportSchema = Titled('Plugin', {
  name: Type.String(),
  description: Type.String(),
  api: Integer('Version of the plugin contract that it is written for'),
  path: Type.Optional(Text('File that it was loaded from; absent for built-in ones')),
  optional: Flag('Whether the server continues without it when it fails'),
  state: Type.Enum(['waiting', 'active', 'disabled', 'failed']),
  reason: Type.Optional(Text('Why it is disabled or failed')),
  needs: Texts('Services of other plugins that it needs'),
  services: Texts('Services that it offers to other plugins'),
  routes: Texts('Such as GET /api/tags'),
  web: Type.Optional(
    Group("Its own page, which the server's page shows in a frame", { title: Type.String(), path: Type.String() })
  ),
  hooks: Texts('The hooks that it uses, such as request')
})
export type PluginReport = Static<typeof PluginReportSchema>
