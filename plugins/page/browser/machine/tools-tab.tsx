import { useState } from 'preact/hooks'
import { Button } from '../parts/forms.tsx'
import { Card, Fault } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import type { Tool, ToolServer } from '../state/hosted-tools.ts'
import { labelFor, texts } from '../texts/texts.ts'

/** The servers of tools that the user may use. */
export function ToolsTab() {
  const { reply, fault, again } = useReply<{ servers: ToolServer[] }>('api/mcp')
  return (
    <>
      <Fault text={fault?.message} />
      {reply?.servers.length === 0 && <p class="quiet">{texts.value.nothingYet}</p>}
      <ul class="plain-list">
        {reply?.servers.map(server => (
          <ServerCard key={server.name} server={server} onChecked={again} />
        ))}
      </ul>
    </>
  )
}

function ServerCard({ server, onChecked }: { server: ToolServer; onChecked: () => void }) {
  const t = texts.value
  const { name, transport, state, fault, roles, ask: asks } = server
  const [tools, setTools] = useState<readonly Tool[] | undefined>(undefined)
  const [isBusy, setBusy] = useState(false)
  const [reason, setReason] = useState('')
  const check = async () => {
    setBusy(true)
    setReason('')
    await ask<{ tools: Tool[] }>('GET', `api/mcp/${name}`).then(
      found => setTools(found.tools),
      error => setReason(error.message)
    )
    setBusy(false)
    onChecked()
  }
  const facts = [transport, t.askPolicies[asks], roles.map(role => labelFor(t.roles, role)).join(', ')]
  return (
    <Card
      title={name}
      facts={facts}
      fault={reason || fault}
      actions={
        <>
          <span class={state === 'running' ? 'chip is-good' : 'chip'}>{t.toolServerStates[state]}</span>
          <Button onClick={check} disabled={isBusy} text={t.checkServer} />
        </>
      }
    >
      {tools && (
        <ul class="plain-list">
          {tools.map(tool => (
            <li key={tool.name}>
              <span class="mono">{tool.name}</span> <small>{tool.description}</small>
            </li>
          ))}
        </ul>
      )}
    </Card>
  )
}
