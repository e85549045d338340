import type { Signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { announce, Menu, MenuItem } from '../parts/controls.tsx'
import { formatNumber } from '../parts/formats.ts'
import { useReply } from '../parts/view-hooks.ts'
import type { Settings } from '../state/chat-format.ts'
import { type Draft, useTokenCount } from '../state/context-use.ts'
import { toolServers } from '../state/hosted-tools.ts'
import { capabilitiesOf, engineOf } from '../state/server-state.ts'
import { fill, texts } from '../texts/texts.ts'
import { ToolLine } from './tool-picker.tsx'

/** The share of the context above which an answer may not fit. */
const NEARLY_FULL = 0.9
/** Formats of models whose engines count tokens. */
const COUNTED = ['gguf', 'safetensors']

interface LineProps extends Draft {
  onSettings: (change: Partial<Settings>) => unknown
  onAttach: (files: File[]) => void
  /** Receives a warning before the context is full. */
  warning: Signal<string>
}

/** The part of the line below the message field that is loaded later: thinking, tools, and use of the context. */
export function ComposerLine({ onSettings, onAttach, warning, ...draft }: LineProps) {
  const t = texts.value
  const { model, settings } = draft
  const effort = t.efforts[settings.effort ?? 'auto']
  const engine = engineOf(model)
  const isCounted = engine?.state === 'loaded' && COUNTED.includes(engine.format)
  return (
    <>
      {capabilitiesOf(model).includes('thinking') && (
        <Menu label={`${t.effort}: ${effort}`} title={effort} icon="bulb" class="effort">
          {() =>
            ([undefined, 'off', 'low', 'medium', 'high'] as const).map(each => (
              <MenuItem
                key={each}
                text={t.efforts[each ?? 'auto']}
                checked={each === settings.effort}
                onSelect={() => onSettings({ effort: each } as Partial<Settings>)}
              />
            ))
          }
        </Menu>
      )}
      {toolServers.value.length > 0 && (
        <ToolLine chosen={settings.mcp ?? []} onChoose={mcp => onSettings({ mcp })} onAttach={onAttach} />
      )}
      <span class="grow" />
      {isCounted && (draft.text.trim() !== '' || draft.attachments.length > 0) && (
        <ContextUse draft={draft} context={engine.options.num_ctx} warning={warning} />
      )}
    </>
  )
}

/** How much of the context the message will use, and a warning before it is full. */
function ContextUse({ draft, context, warning }: { draft: Draft; context: number; warning: Signal<string> }) {
  const t = texts.value
  const { reply } = useReply<{ context_window: number }>('api/show', { model: draft.model })
  const count = useTokenCount(draft, context)
  const { num_ctx: own, context_overflow: overflow } = draft.settings.options ?? {}
  const size = typeof own === 'number' && own > 0 ? own : (reply?.context_window ?? Number.POSITIVE_INFINITY)
  const share = (count?.tokens ?? 0) / size
  const tooLong = count?.hasDocuments ? t.searches : overflow === 'drop_oldest' ? t.dropsOldest : t.tooLong
  const kind = share >= 1 ? tooLong : share >= NEARLY_FULL ? t.nearlyFull : ''
  const values = {
    used: formatNumber(count?.tokens ?? 0),
    size: formatNumber(size),
    percent: `${Math.round(100 * share)} %`
  }
  const told = fill(kind, values)
  useEffect(() => {
    warning.value = told
    return () => {
      warning.value = ''
    }
  }, [told])
  useEffect(() => {
    // Not again for each key.
    if (told) announce(told)
  }, [kind])
  if (!count || size === Number.POSITIVE_INFINITY) return null
  const label = fill(count.isEstimate ? t.usedAbout : t.used, values)
  return (
    <span class="context-use" title={label}>
      <span>{label}</span>
      <meter class="fill" min={0} max={1} high={0.8} value={share} aria-label={label} />
    </span>
  )
}
