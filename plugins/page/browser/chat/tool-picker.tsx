import { useState } from 'preact/hooks'
import { attempt, Dialog, IconButton, MenuItem } from '../parts/controls.tsx'
import { Icon } from '../parts/icons.tsx'
import { Fault, joinFacts } from '../parts/layout.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import { filesOf } from '../state/chat-files.ts'
import type { ResultFile } from '../state/chat-format.ts'
import { chats } from '../state/chats.ts'
import {
  allowedTools,
  forgetTool,
  isChosen,
  type Tool,
  toolServers,
  usableTools,
  withTool
} from '../state/hosted-tools.ts'
import { fill, texts } from '../texts/texts.ts'

interface PickerProps {
  chosen: readonly string[]
  onChoose: (chosen: string[]) => void
  /** Attaches a resource. */
  onAttach: (files: File[]) => void
}

/** The button that shows and chooses the tools that the chat uses. */
export function ToolLine(props: PickerProps) {
  const t = texts.value
  const [isOpen, setOpen] = useState(false)
  const names = usableTools(props.chosen).join(', ')
  const title = names ? `${t.hostedTools}: ${names}` : t.hostedTools
  return (
    <>
      <button
        type="button"
        class="menu-button tool-line"
        aria-haspopup="dialog"
        aria-label={title}
        title={title}
        onClick={() => setOpen(true)}
      >
        <Icon name="tool" size={16} />
        <span>{names || t.hostedTools}</span>
      </button>
      {isOpen && (
        <Dialog title={t.hostedTools} onClose={() => setOpen(false)}>
          <p class="quiet">{t.hostedToolsNote}</p>
          {toolServers.value.map(({ name }) => (
            <ServerTools key={name} {...props} server={name} onClose={() => setOpen(false)} />
          ))}
        </Dialog>
      )}
    </>
  )
}

interface Resource {
  uri: string
  name: string
  description: string
}

function ServerTools(props: PickerProps & { server: string; onClose: () => void }) {
  const t = texts.value
  const { server, chosen, onChoose, onAttach, onClose } = props
  const path = `api/mcp/${server}`
  const { reply, fault } = useReply<{ tools: Tool[] }>(path)
  // The server of tools may have to be started first.
  const more = useReply<{ resources: Resource[] }>(reply ? `${path}/resources` : '')
  const tools = reply?.tools.map(({ name }) => name) ?? []
  const isWhole = chosen.includes(server)
  const attach = (uri: string) =>
    attempt(async () => {
      const { files } = await ask<{ files: ResultFile[] }>('GET', `${path}/resource?uri=${encodeURIComponent(uri)}`)
      onAttach(filesOf(files))
      onClose()
    })
  return (
    <section aria-label={server} aria-busy={!reply && !fault}>
      <h3 class="mono">{server}</h3>
      <Fault text={fault?.message} isAnnounced />
      {!reply && !fault && <p class="quiet">{t.loading}</p>}
      {(tools.length > 0 || isWhole) && (
        <MenuItem
          text={fill(t.allTools, { server })}
          checked={isWhole}
          onSelect={() => onChoose(withTool(chosen, server, tools, !isWhole))}
        />
      )}
      {reply?.tools.map(({ name, description, asks }) => {
        const isOn = isChosen(chosen, server, name)
        return (
          <MenuItem
            key={name}
            text={name}
            note={joinFacts([asks && t.asksFirst, description])}
            checked={isOn}
            onSelect={() => onChoose(withTool(chosen, server, tools, !isOn, name))}
          />
        )
      })}
      <Fault text={more.fault?.message} />
      {more.reply?.resources.map(({ uri, name, description }) => (
        <MenuItem
          key={uri}
          icon="clip"
          text={fill(t.attachResource, { name })}
          note={description || uri}
          onSelect={() => attach(uri)}
        />
      ))}
    </section>
  )
}

/** The tools that the user lets run without asking. */
export function AllowedTools() {
  const t = texts.value
  return (
    <>
      {allowedTools.value.length === 0 && <p class="quiet">{t.nothingYet}</p>}
      <ul class="plain-list">
        {allowedTools.value.map(entry => {
          const [name = '', chat] = entry.split(' ')
          const title = chat === undefined ? t.inAllChats : (chats.value.get(chat)?.title ?? t.chatGone)
          return (
            <li key={entry} class="row">
              <span class="grow">
                <span class="mono">{name}</span> <small>{title}</small>
              </span>
              <IconButton icon="trash" label={`${t.revoke}: ${name}`} onClick={() => forgetTool(entry)} />
            </li>
          )
        })}
      </ul>
    </>
  )
}
